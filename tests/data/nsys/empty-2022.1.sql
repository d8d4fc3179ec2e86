-- An export without an event, as nsys 2022.1 writes it.
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
CREATE TABLE ThreadNames (nameId, priority, globalTid);
CREATE TABLE EXPORT_META_DATA (name, value);
INSERT INTO EXPORT_META_DATA (name, value) VALUES
    ('EXPORT_PRODUCT_VERSION', '2022.1.3.3'),
    ('EXPORT_SCHEMA_VERSION', '2.9.1');
