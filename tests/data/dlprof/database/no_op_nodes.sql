.read complete.sql
DROP TABLE op_nodes;
