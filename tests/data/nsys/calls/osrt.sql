.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'poll'),
    (2, 'profiling started');
CREATE TABLE OSRT_API (start, end, eventClass, globalTid, nameId, returnValue, nestingLevel, callchainId);
INSERT INTO OSRT_API (start, end, eventClass, globalTid, nameId) VALUES
    (0, 5, 27, 281475094151175, 1),
    (10, 30, 27, 281475094151175, 1),
    (1, 1, 31, 281475094151175, 2),
    (90, 90, 32, 281475094151175, 2);
