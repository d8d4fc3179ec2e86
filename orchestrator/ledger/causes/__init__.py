"""Why executed and estimated FLOPs differ. To read in this order:

``evidence`` groups the kernels of a row and says what its products are. ``matching`` and
``breakdown`` split its count into products as tiles, grids and the rules of ``counts/derived``
predict them, and the parts beside them. ``row_rules``, ``shape_rules``, ``gradient_rules``,
``tensor_rules`` and ``missing_rules`` propose causes of one row, ``call_rules``, ``window_rules``
and ``study_rules`` of several; ``rule`` holds what a cause is and the checks of what it implies.
``judge`` calls them and keeps what brings their product to the ratio.
"""
