.read bare.sql
DROP TABLE kernel_iteration_node;
