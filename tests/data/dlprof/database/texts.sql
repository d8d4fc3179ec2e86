.read bare.sql
UPDATE read_only_kernels SET gpu_start = 'x', device_id = 'y';
UPDATE dictionary SET string = 5 WHERE id = 2;
