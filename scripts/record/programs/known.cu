// Kernels whose thread instructions follow from the source: ROUNDS dependent operations per element.
// The constants are chosen so that no value overflows and no operation can be dropped.
#include <cstdlib>
#include <cuda_fp16.h>

constexpr int ROUNDS = 64;

#define KERNEL(name, type, statement)                                                              \
    __global__ void name(type *values, int elements) {                                             \
        int index = blockIdx.x * blockDim.x + threadIdx.x;                                         \
        if (index >= elements) return;                                                             \
        type v = values[index];                                                                    \
        _Pragma("unroll") for (int round = 0; round < ROUNDS; ++round) { statement; }              \
        values[index] = v;                                                                         \
    }

KERNEL(add_fp32, float, v = __fadd_rn(v, 0.5f))
KERNEL(multiply_fp32, float, v = __fmul_rn(v, 0.999f))
KERNEL(fused_fp32, float, v = __fmaf_rn(v, 0.999f, 0.5f))
KERNEL(fused_fp64, double, v = __fma_rn(v, 0.999, 0.5))
KERNEL(fused_half2, __half2, v = __hfma2(v, __half2half2(__float2half(0.5f)), __half2half2(__float2half(0.25f))))

template <typename T> void launch(void (*kernel)(T *, int), int elements) {
    T *values;
    if (cudaMalloc(&values, sizeof(T) * elements) != cudaSuccess) exit(1);
    cudaMemset(values, 0, sizeof(T) * elements);
    kernel<<<(elements + 255) / 256, 256>>>(values, elements);
    if (cudaDeviceSynchronize() != cudaSuccess) exit(1);
    cudaFree(values);
}

#define ENTRY(name)                                                                                \
    extern "C" void run_##name(int elements) { launch(name, elements); }

ENTRY(add_fp32)
ENTRY(multiply_fp32)
ENTRY(fused_fp32)
ENTRY(fused_fp64)
ENTRY(fused_half2)
