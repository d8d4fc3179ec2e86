-- An export without an event, as nsys 2024.2 writes it.
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER);
CREATE TABLE ThreadNames (nameId, priority, globalTid);
CREATE TABLE META_DATA_EXPORT (name, value);
INSERT INTO META_DATA_EXPORT (name, value) VALUES
    ('EXPORT_PRODUCT_VERSION', '2024.2.3.38'),
    ('EXPORT_SCHEMA_VERSION', '3.11.1');
