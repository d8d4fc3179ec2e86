ALTER TABLE sample ADD COLUMN memory_clock_hz INTEGER; -- current; Hz; NULL: not collected
ALTER TABLE sample ADD COLUMN energy_j REAL; -- since the driver was loaded; two readings give a run's; J; NULL: not collected
ALTER TABLE sample ADD COLUMN throttle_reasons TEXT; -- what holds the clocks back, joined by +, or none; -; NULL: not collected
ALTER TABLE sample ADD COLUMN process_memory_bytes INTEGER; -- on the device, by the run's processes; byte; NULL: not told
ALTER TABLE sample ADD COLUMN process_utilisation REAL; -- the same of gpu_utilisation; 0..1; NULL: not told by the driver
ALTER TABLE sample ADD COLUMN host_cpu REAL; -- cores the run's processes kept busy since the last; count; NULL: a GPU's reading
ALTER TABLE sample ADD COLUMN host_memory_bytes INTEGER; -- resident, shared pages once each; byte; NULL: a GPU's reading
