.read complete.sql
UPDATE rocpd_region_0000_test SET start = NULL WHERE id = 3;
