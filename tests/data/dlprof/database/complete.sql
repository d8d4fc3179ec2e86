.read bare.sql
CREATE TABLE read_only_system_config(id INTEGER PRIMARY KEY, framework, cuda_version, cudnn_version, nsys_version,
    dlprof_version, dlprof_build, cpu_model, driver_version, mode_string, num_gpus, user_name);
INSERT INTO read_only_system_config VALUES (1, 'PyTorch 1.10', '10.2', '', '2021', 'v1.8.0', 'b', 'a CPU', '515', 'm', 1,
    'somebody');
CREATE TABLE read_only_model_config(num_workers, pin_memory, cudnn_benchmark_disabled, detect_anomaly, gradcheck,
    gradgradcheck, autograd_profile, emit_nvtx, amp_enabled);
INSERT INTO read_only_model_config VALUES (4, 1, 0, 0, 0, 0, 0, 1, NULL);
CREATE TABLE db_version(current_version);
INSERT INTO db_version VALUES ('1.1');
CREATE TABLE read_only_domains(id, domain_name_id);
INSERT INTO read_only_domains VALUES (5, 1), (6, 77);
CREATE TABLE model_summary(aggr_id, domain_id, wall_time, tc_utilization, gpu_utilization, tc_duration_pct, non_tc_duration_pct, memory_duration_pct, dataloader_duration_pct, io_duration_pct, cpu_duration_pct, other_duration_pct, iter_total, iter_aggregated, iter_start, iter_stop, avg_iteration_time, iteration_time_std_dev, nodes_total_id, nodes_using_tc_id, nodes_tc_eligible_id, nodes_other_id);
INSERT INTO model_summary VALUES (1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO model_summary VALUES (2, 5, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 1, 2, 3, 4);
CREATE TABLE category_summary(id, gpu_time, cpu_time, count);
INSERT INTO category_summary VALUES (1, 11, 12, 13), (2, 21, 22, 23), (3, 31, 32, 33), (4, 41, 42, 43), (5, 51, 52, 53),
    (6, 61, 62, 63), (7, 71, 72, 73), (8, 81, 82, 83);
CREATE TABLE kernel_summary_metrics(aggr_id, domain_id, kernels_total_id, kernels_using_tc_id, kernels_non_tc_id);
INSERT INTO kernel_summary_metrics VALUES (1, 5, 1, 1, 1), (2, 6, 1, 1, 1), (2, 5, 5, 6, 7);
CREATE TABLE memory_summary_metrics(aggr_id, domain_id, memory_time_id);
INSERT INTO memory_summary_metrics VALUES (2, 5, 8);
CREATE TABLE read_only_cuda_calls(name_id, api_start, api_stop);
INSERT INTO read_only_cuda_calls VALUES (1, 10, 13), (1, 20, 25), (88, 5, 6);
CREATE TABLE read_only_cuda_syncs(name_id, api_start, api_stop);
INSERT INTO read_only_cuda_syncs VALUES (3, 1, 8);
CREATE TABLE gpu_memories(used, total);
INSERT INTO gpu_memories VALUES (7, 9);
CREATE TABLE expert_systems_feedback(aggr_id, problem, recommendation);
INSERT INTO expert_systems_feedback VALUES (1, 'old', 'x'), (2, 'slow', 'go');
INSERT INTO read_only_kernels VALUES (3, 1, 1, 2, 0, 6000, 6300, 1, 2, 0);
CREATE TABLE op_nodes(id, aggr_id, read_only_ops_id, node_time_metrics_id, num_calls);
INSERT INTO op_nodes VALUES (1, 1, 1, 1, 9), (2, 2, 1, 1, 3), (3, 2, 1, 1, 'x'), (4, 2, 44, 45, 2);
CREATE TABLE node_time_metrics(id, cpu_time_metric_id, gpu_time_metric_id);
INSERT INTO node_time_metrics VALUES (1, 1, 2);
CREATE TABLE metric(id, sum);
INSERT INTO metric VALUES (1, 900), (2, 400);
