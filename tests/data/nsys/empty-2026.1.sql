-- An export without an event, as nsys 2026.1 writes it.
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
CREATE TABLE ThreadNames (nameId, priority, globalTid);
CREATE TABLE META_DATA_EXPORT (name, value);
INSERT INTO META_DATA_EXPORT (name, value) VALUES
    ('EXPORT_PRODUCT_VERSION', '2026.1.1.204'),
    ('EXPORT_SCHEMA_VERSION', '3.24.14');
