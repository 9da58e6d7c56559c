__device__ __forceinline__ float square(float a) {
  return a * a;
}
