.read complete.sql
DELETE FROM gpu_memories;
