// The instruction sets for which kernels are compiled: portable scalar code, AVX2 and AVX-512. Include before any
// Highway header.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
