// CUDA's vector types with their sizes and alignments, for a host compiler without CUDA's headers: names and layout are CUDA's.
#pragma once

// name: of `count` elements `type`, aligned as CUDA does
#define SIMT_VECTOR1(name, type) \
  struct name {                  \
    type x;                      \
  };                             \
  constexpr name make_##name(type x) { return {x}; }
#define SIMT_VECTOR2(name, type)          \
  struct alignas(2 * sizeof(type)) name { \
    type x, y;                            \
  };                                      \
  constexpr name make_##name(type x, type y) { return {x, y}; }
#define SIMT_VECTOR3(name, type) \
  struct name {                  \
    type x, y, z;                \
  };                             \
  constexpr name make_##name(type x, type y, type z) { return {x, y, z}; }
#define SIMT_VECTOR4(name, type)                                  \
  struct alignas(sizeof(type) < 4 ? 4 * sizeof(type) : 16) name { \
    type x, y, z, w;                                              \
  };                                                              \
  constexpr name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
#define SIMT_VECTORS(name, type) \
  SIMT_VECTOR1(name##1, type) SIMT_VECTOR2(name##2, type) SIMT_VECTOR3(name##3, type) SIMT_VECTOR4(name##4, type)

SIMT_VECTORS(char, signed char)
SIMT_VECTORS(uchar, unsigned char)
SIMT_VECTORS(short, short)
SIMT_VECTORS(ushort, unsigned short)
SIMT_VECTORS(int, int)
SIMT_VECTORS(uint, unsigned int)
SIMT_VECTORS(float, float)
SIMT_VECTOR2(longlong2, long long)
SIMT_VECTOR2(ulonglong2, unsigned long long)
SIMT_VECTOR2(double2, double)

#undef SIMT_VECTORS
#undef SIMT_VECTOR4
#undef SIMT_VECTOR3
#undef SIMT_VECTOR2
#undef SIMT_VECTOR1

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
