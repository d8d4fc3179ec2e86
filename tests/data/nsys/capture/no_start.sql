.read ../empty-2024.2.sql
