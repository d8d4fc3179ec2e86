.read ../empty-2024.2.sql
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs, utcTime);
INSERT INTO TARGET_INFO_SESSION_START_TIME (utcEpochNs) VALUES
    (1705446034890745579);
CREATE TABLE ANALYSIS_DETAILS (globalVid, duration, startTime, stopTime);
INSERT INTO ANALYSIS_DETAILS (duration) VALUES
    (12561596789);
CREATE TABLE ENUM_DIAGNOSTIC_SOURCE_TYPE (id, name, label);
INSERT INTO ENUM_DIAGNOSTIC_SOURCE_TYPE (id, label) VALUES
    (1, 'Injection');
CREATE TABLE DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid);
INSERT INTO DIAGNOSTIC_EVENT (source, severity, text) VALUES
    (1, 1, 'No CUDA
 events.'),
    (1, 2, 'No CUDA
 events.'),
    (1, 3, 'No CUDA
 events.');
