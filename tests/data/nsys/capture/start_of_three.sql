.read ../empty-2024.2.sql
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs, utcTime);
INSERT INTO TARGET_INFO_SESSION_START_TIME (utcEpochNs) VALUES
    (0),
    (-1),
    (1000000000);
CREATE TABLE ANALYSIS_DETAILS (globalVid, duration, startTime, stopTime);
INSERT INTO ANALYSIS_DETAILS (duration) VALUES
    (5),
    (9),
    (7);
