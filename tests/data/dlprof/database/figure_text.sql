.read complete.sql
UPDATE model_summary SET gpu_utilization = 'N/A', wall_time = NULL;
