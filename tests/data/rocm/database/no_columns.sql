.read complete.sql
ALTER TABLE rocpd_info_kernel_symbol_0000_test DROP COLUMN arch_vgpr_count;
ALTER TABLE rocpd_info_agent_0000_test DROP COLUMN product_name;
