.read ../empty-2024.2.sql
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId, metricId, metricName);
INSERT INTO TARGET_INFO_GPU_METRICS (typeId, metricId, metricName) VALUES
    (256, 1, 'GPC Clock Frequency [MHz]'),
    (256, 2, 'GR Active [Throughput %]'),
    (256, 3, 'SMs Active [Throughput %]');
CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value);
INSERT INTO GPU_METRICS (timestamp, typeId, metricId, value) VALUES
    (100, 256, 1, 1500),
    (100, 256, 2, 40),
    (100, 256, 3, 10),
    (200, 256, 1, 1300),
    (200, 256, 2, 60),
    (200, 256, 3, 30);
