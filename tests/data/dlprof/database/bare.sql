CREATE TABLE dictionary(id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE read_only_ops(id INTEGER PRIMARY KEY, domain_id, op_id, op_name, op_type_id, direction_id);
CREATE TABLE read_only_kernels(id INTEGER PRIMARY KEY, read_only_ops_id, name_id, long_name_id, uses_tc, gpu_start,
    gpu_stop, grid_id, block_id, device_id);
CREATE TABLE read_only_grid_block(id INTEGER PRIMARY KEY, x, y, z);
CREATE TABLE read_only_memcpys(id INTEGER PRIMARY KEY, gpu_start, gpu_stop, num_bytes, copy_kind, device_id);
CREATE TABLE read_only_memsets(id INTEGER PRIMARY KEY, gpu_start, gpu_stop, num_bytes, device_id);
CREATE TABLE read_only_gpu_infos(id INTEGER PRIMARY KEY, device_id, gpu_name, compute_capability_major,
    compute_capability_minor, sm_count);
CREATE TABLE kernel_iteration_node(id INTEGER PRIMARY KEY, aggr_id, read_only_kernel_id, iter_value);
CREATE TABLE iteration_list(id INTEGER PRIMARY KEY, aggr_id, iter_value, start_time, stop_time);
INSERT INTO dictionary VALUES (1, 'conv'), (2, 'void conv<float>(float*)'), (3, 'conv2d'), (4, 'fprop');
INSERT INTO read_only_ops VALUES (1, 1, 'CONV_1', 'conv1:forward', 3, 4);
INSERT INTO read_only_grid_block VALUES (1, 8, 2, 1), (2, 128, 1, 1);
INSERT INTO read_only_kernels VALUES (1, 1, 1, 2, 1, 5000, 5100, 1, 2, 0), (2, 99, 1, 98, 0, 0, 0, 97, 2, 0);
INSERT INTO read_only_memcpys VALUES (1, 10, 30, 4096, 1, 0);
INSERT INTO read_only_memsets VALUES (1, 40, 45, 64, 0);
INSERT INTO read_only_gpu_infos VALUES (1, 0, 'Synthetic GPU', 7, 5, 40);
INSERT INTO kernel_iteration_node VALUES (1, 1, 1, 7), (2, 2, 1, 9);
INSERT INTO iteration_list VALUES (1, 1, 7, 0, 10), (2, 2, 9, 100, 250);
