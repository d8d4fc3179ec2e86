.read complete.sql
DELETE FROM read_only_kernels;
