.read bare.sql
DROP TABLE read_only_memcpys;
DROP TABLE read_only_grid_block;
