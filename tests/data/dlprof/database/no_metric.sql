.read complete.sql
DROP TABLE metric;
