// Kernels of our own, of which HOW.md says how their machine code became text.

__global__ void nested(float *a, int n) {
  float s = a[threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < 12; i++) {
#pragma unroll 1
    for (int j = 0; j < 7; j++) s = s * 1.5f + a[j];
    s += 2.f;
  }
  a[threadIdx.x] = s;
}

__global__ void product(const float *a, const float *b, float *c, int m, int n, int k) {
  int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m && j < n) {
    float s = 0;
    for (int x = 0; x < k; x++) s += a[i * k + x] * b[x * n + j];
    c[i * n + j] = s;
  }
}

__device__ __noinline__ float square(float x) { return x * x + 1.f; }

__global__ void calls(float *a) { a[threadIdx.x] = square(square(a[threadIdx.x])); }

__global__ void choice(float *a, int n) {
  float s = a[threadIdx.x];
  switch (n) {
  case 0: s += 1; break;
  case 1: s *= 3; break;
  case 2: s = s * s + 1; break;
  case 3: s = s - a[3]; break;
  case 5: s = s * 2 + 7; break;
  default: s = 0;
  }
  a[threadIdx.x] = s;
}

typedef float (*function)(float);

__global__ void indirect(float *a, function g) { a[threadIdx.x] = g(a[threadIdx.x]); }

__global__ void steps(float *a, int n) {
  for (int i = 0; i < n; i += blockDim.x) a[i + threadIdx.x] += 1.f;
}
