.read complete.sql
DROP TABLE rocpd_info_kernel_symbol_0000_test;
CREATE VIEW rocpd_info_kernel_symbol_0000_test AS
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;
