.read ../empty-2024.2.sql
INSERT INTO StringIds (id, value) VALUES
    (1, 'someCall');
CREATE TABLE CUDNN_EVENTS (start, end, eventClass, globalTid, nameId);
INSERT INTO CUDNN_EVENTS (start, end, nameId) VALUES
    (0, 3, 1),
    (5, 9, 1);
