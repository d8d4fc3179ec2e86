.read ../empty-2024.2.sql
CREATE TABLE DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid);
INSERT INTO DIAGNOSTIC_EVENT (source, severity, text) VALUES
    (4, 2, 'kept');
INSERT INTO DIAGNOSTIC_EVENT (source, severity) VALUES
    (4, 2);
INSERT INTO DIAGNOSTIC_EVENT (source, severity, text) VALUES
    (4, 2, ''),
    (4, '2', 'odd'),
    (4, 9, 'other');
