.read complete.sql
INSERT INTO gpu_memories VALUES (8, 9);
INSERT INTO read_only_gpu_infos VALUES (2, 1, NULL, 8, NULL, 'x');
