.read complete.sql
DROP TABLE node_time_metrics;
