// The entry points of the chained GEMMs. ELEMENT (E4m3, Bf16 or Int8) is set by the compiler, one object a type.
#include "chain.cuh"

using namespace boundgen;
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)

template <int D> static int chain(const ChainCall& c) {
  if (c.tile == 256) return launch_chain<ELEMENT, 256, D>(c);
  if (c.tile == 192) return launch_chain<ELEMENT, 192, D>(c);
  if (c.tile == 128) return launch_chain<ELEMENT, 128, D>(c);
  return kErrorNoVariant;
}
extern "C" __attribute__((visibility("default"))) int NAME1(chain, ELEMENT)(const ChainCall* c) {
  return c->head_dim == 128 ? chain<128>(*c) : c->head_dim == 64 ? chain<64>(*c) : kErrorNoVariant;
}
