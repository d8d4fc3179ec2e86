"""Words that kernel names are told by, in explicit tables, the more special word first.

The names stand in public profiler reports and in the sources of the libraries: cuDNN 7 to 9, cuBLAS and cuBLASLt,
CUTLASS 2 and 3, ATen, Triton as PyTorch's compiler writes it, flash attention, xformers, TensorRT, NCCL, MIOpen.
"""

from __future__ import annotations

FAMILIES: tuple[tuple[str, str], ...] = (
    ("collective", r"nccl|rccl|all_?reduce|all_?gather(?!_?nd)|reduce_?scatter|all_?to_?all"),
    ("attention", r"flash_?(fwd|bwd|attn|attention)|(^|[^a-z])flash(::|_attn|_fwd|_bwd)|fmha|attention_?kernel"
                  r"|native_sdpa|sdpa_|mem_eff|flashattn|batch(decode|prefill)with|mergestates|flex_?attention"
                  r"|paged_?attention|attn_(fwd|bwd)"),
    ("winograd", r"winograd"),
    ("fft", r"(^|[^a-z])fft|_fft_|fft[123]d|cf_?gemm.*fft|flip_filter|(vector|regular|dp)_?fft|fft_convolve"),
    ("depthwise", r"depthwise|grad2d_grouped_direct|conv2d_grouped_direct|dwconv|(conv|grad)2d_c1_k1"),
    ("layout", r"nchwtonhwc|nhwctonchw|^(?!.*[0-9]cudnn).*(nchw2nhwc|nhwc2nchw)|(?<!conv_)transpose|permut|"
               r"im2col|col2im|"
               r"(compute|precompute).*offsets|tensortransform|nchwaddpadding|nhwcaddpadding|"
               r"scalepackedtensor|convert_weights|kern_precompute_indices|reorder|genericreformat|pack_|"
               r"unpack_|region_transform|"
               r"compute_gemm_pointers|converttensor|shuffleintensor|swapdimension|routingindices"),
    ("optimizer", r"adam|adadelta|adagrad|rmsprop|sgd|multi_tensor_apply|foreach|lamb_stage"),
    ("conv", r"scudnn|hcudnn|icudnn|[0-9]cudnn|cudnn.*(conv|dgrad|wgrad|fprop)|implicit_?(con|gemm)|"
             r"conv(olve|olution|[123]d|_transpose|_dilated)|(^|[^a-z])(fprop|dgrad|wgrad)|[0-9](fprop|dgrad|"
             r"wgrad)|wgrad_alg|"
             r"dgrad_(engine|alg)|xmma_(fprop|dgrad|wgrad)|conv_?depth|igemm_(fwd|bwd|wrw)"),
    ("gemm", r"gemm|gemv|cutlass(__5x_[a-z]+)?::(device_)?kernel|cutlass_\d|cublaslt|splitkreduce|split_?k|"
             r"(^|_)dot_kernel|nvjet|mat(rix)?_?mul|reduce_1block|^cijk_|^bmm_|(^|_)ger_kernel|trsm|trmm|syrk|nrm2|"
             r"axpy|asum|scal_kernel|fused_moe_kernel|marlin"),
    ("rnn", r"lstm|gru|rnn"),
    ("softmax", r"soft_?max|nll_?loss|cross_?entropy|nllcriterion"),
    ("norm", r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm|instance_?norm|rms_?norm|_norm_kernel|weight_norm|"
             r"compute_bn|rowwisemoments|"
             r"gammabeta|normalizationforward|normalizationbackward"),
    ("pool", r"pool|adaptive_average"),
    ("reduction", r"reduce|reduction|(^|[^a-z])sum_|scan|argmax|argmin|sort|histogram|unique|"
                  r"top_?k|finalizekernel|finalizemoe"),
    ("copy", r"memcpy|memset|copy|cat(array)?batched|fill_?kernel|fillfunctor|zero_kernel|index_?select|gather|"
             r"scatter|index_(put|fill|elem|copy)|indexing|reshape_and_cache|__fill|(?<!rotary_)embedding|"
             r"roll_cuda|uninitialized_fill"),
    ("elementwise", r"elem(ent)?_?wise|pointwise|relu|sigmoid|tanh|gelu|silu|swiglu|swish|dropout|add_tensor|"
                    r"op_(generic_)?tensor|optensor|tensor_?op|add_?bias|bias_?add|vectorized|distribution|"
                    r"activation|threshold|triu_tril|mse_loss|upsample|rotary|quant|parallel_for|"
                    r"adjacent_?difference|loss_kernel|"
                    r"bias(nhwc|nchw)kernel|random|initrng|initializematrix|eigenmetakernel|"
                    r"(^|_)fusion(_\d+)?$|activate|vec(tor)?_?add|saxpy|addition|(^|_)add_[a-z]*kernel"),
)  # fmt: skip
"""Family and what its kernels are called, tried in this order."""

TRITON: tuple[tuple[str, str], ...] = (
    ("attention", r"^triton_tem_.*(attention|sdpa)"),
    ("conv", r"^triton_tem_.*conv"),
    ("elementwise", r"^triton_(poi|for)_"),
    ("softmax", r"^triton_(red|per|mix|spl)_.*(softmax|nll_loss)"),
    ("norm", r"^triton_(red|per|mix|spl)_.*(norm|var_mean)"),
    ("reduction", r"^triton_(red|per|mix|spl)_"),
    ("gemm", r"^triton_(tem_|.*mm)"),
)  # fmt: skip
"""PyTorch's compiler names a kernel by its shape (poi, red, per, tem) and then by every operation fused into it: the
shape decides, since a pointwise kernel named after a convolution only adds the bias."""

ROLES: tuple[tuple[str, str], ...] = (
    ("offsets", r"offsetskernel|precompute_indices|generatewinogradtiles|compute_gemm_pointers|computeoffsets|"
                r"compute[a-z]*offsets"),
    ("transform", r"winograd[a-z]*(data|filter|output|delta)|fft[123]d_(r2c|c2r)|flip_filter|region_transform"),
    ("reduction", r"splitkreduce|split_?k_?reduc|mergestates|combine_kernel|splitk_combine|reduce_1block|kernel_reduce"
                  r"|wgrad_reduce|dot_kernel.*reduce"),
    ("epilogue", r"epilogue::impl|bias_?add|add_?bias|add_tensor_kernel|addtensor|op_(generic_)?tensor|optensor|"
                 r"convert_dq|scalepackedtensor|activation_fw|activation_bw|dot_do_o|preprocess"),
    ("layout", r"nchwtonhwc|nhwctonchw|^(?!.*[0-9]cudnn).*(nchw2nhwc|nhwc2nchw)|(?<!conv_)transpose|permut|im2col|col2im|"
               r"tensortransform|addpadding|"
               r"convert_weights|reorder|genericreformat"),
)  # fmt: skip
"""What a kernel does beside the arithmetic of its layer; "main" when none fits."""

LIBRARIES: tuple[tuple[str, str], ...] = (
    ("triton", r"^triton_"),
    ("nccl", r"nccl"),
    ("rccl", r"rccl"),
    ("cudnn", r"cudnn|winograd|fft[12]d_|flip_filter|implicit_convolve|explicit_convolve|precomputed_convolve|"
              r"dgrad_engine|wgrad_alg|grouped_direct_kernel|cask|(^|::)bn_(fw|bw)|region_transform_abc"),
    ("flash", r"flash::|pytorch_flash|flash_fwd|flash_bwd|flashattn|flash_attn"),
    ("flashinfer", r"flashinfer|batch(decode|prefill)with|persistentvariablelengthmergestates"),
    ("xformers", r"fmha_cutlass|pytorchmemeffattention|attentionbackwardkernel"),
    ("tensorrt", r"_trt$|^trt_|tensorrt|genericreformat|fmhasm|^bmm_"),
    ("aten", r"at::native|^void at::|at_cuda|multi_tensor_apply|aten::"),
    ("cutlass", r"cutlass"),
    ("cublas", r"cublas|nvjet|splitkreduce|gemv|gemmsn|gemmk1|"
               r"^(volta|turing|ampere|maxwell|pascal|hopper)_[a-z0-9_]*gemm"
               r"|^sm\d+_xmma_gemm|dot_kernel|reduce_1block"),
    ("cub", r"cub::|thrust::"),
    ("miopen", r"miopen|igemm_(fwd|bwd|wrw)_gtc|batched_transpose_"),
    ("hipblaslt", r"^cijk_"),
    ("vllm", r"vllm::"),
    ("apex", r"apex"),
)  # fmt: skip
"""Which library wrote it; the more telling word first."""

DIRECTIONS: tuple[tuple[str, str], ...] = (
    ("grad_weight", r"wgrad|igemm_wrw|stridedb_splitk|conv_?depth.*weight|weight_?grad|gammabeta"),
    ("grad_input", r"dgrad|igemm_bwd|bwd_data|backward_?data|grad_?input"),
    ("forward", r"fprop|winogradforward|igemm_fwd|_fwd_|flash_fwd|forward|_fw_|convolve_s?gemm"),
)  # fmt: skip
"""Directions that a name states; kernels that cuDNN uses for several say nothing."""

METHODS: tuple[tuple[str, str, str], ...] = (
    ("winograd", "winograd F(4x4,3x3) not fused", r"winograd[a-z]*4x4"),
    ("winograd", "winograd F(9x9,5x5) not fused", r"winograd[a-z]*9x9_5x5"),
    ("winograd", "winograd F(2x2,3x3)", r"winograd_128x128|winograd_.*tile\d{3}|generatewinogradtiles"),
    ("conv", "implicit gemm, indices worked out before", r"precomputed_convolve"),
    ("conv", "explicit gemm", r"explicit_convolve"),
    ("conv", "implicit gemm", r"implicit_?(convolve|gemm|con)|[shi0-9]cudnn_|[0-9](fprop|dgrad|wgrad)|"
                              r"xmma_(fprop|dgrad|wgrad)|igemm_(fwd|bwd|wrw)|implicitgemm|^triton_tem"),
    ("conv", "implicit gemm with atomic sums", r"dgrad_engine|wgrad_alg"),
    ("conv", "direct", r"direct|conv2d_forward|conv_depthwise"),
    ("gemm", "split-k reduction", r"splitkreduce|split_?k_?reduc"),
    ("gemm", "matrix times vector", r"gemv|gemmk1|dot_kernel|(^|_)ger_kernel|reduce_1block"),
    ("gemm", "vector", r"nrm2|axpy|asum|scal_kernel"),
    ("attention", "sum of partial attention", r"mergestates|splitkv_combine|combine_kernel|reduction_kernel"),
    ("attention", "flash attention", r"flash|native_sdpa|fmhasm"),
    ("attention", "memory-efficient attention", r"fmha_cutlass|mem_eff|pytorchmemeff|attentionbackwardkernel"),
    ("attention", "attention over a paged cache", r"batch(decode|prefill)with|paged_?attention"),
)  # fmt: skip
"""Family, method and what its kernels are called; a family that is not here is its own method."""
