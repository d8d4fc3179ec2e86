.read complete.sql
INSERT INTO gpu_memories VALUES (8, 9);
