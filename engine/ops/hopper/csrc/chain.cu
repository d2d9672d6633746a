// The entry points of the chained GEMMs. ELEMENT (E4m3, Bf16 or Int8) is set by the compiler, one object a type.
#include "chain.cuh"

using namespace boundgen;
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)

// In int8, down has tiles of its own width: 128, or 192 where rows have more sums than slots otherwise.
template <int BO, int D> static int chain(const ChainCall& c) {
  if constexpr (!ELEMENT::kGrouped) return c.down_tile == BO ? launch_chain<ELEMENT, BO, BO, D>(c) : kErrorNoVariant;
  else if (c.down_tile == 128) return launch_chain<ELEMENT, BO, 128, D>(c);
  else if constexpr (BO > 128) return c.down_tile == 192 ? launch_chain<ELEMENT, BO, 192, D>(c) : kErrorNoVariant;
  return kErrorNoVariant;
}
template <int D> static int chain(const ChainCall& c) {
  if (c.tile == 256) return chain<256, D>(c);
  if (c.tile == 192) return chain<192, D>(c);
  if (c.tile == 128) return chain<128, D>(c);
  return kErrorNoVariant;
}
extern "C" __attribute__((visibility("default"))) int NAME1(chain, ELEMENT)(const ChainCall* c) {
  return c->head_dim == 128 ? chain<128>(*c) : c->head_dim == 64 ? chain<64>(*c) : kErrorNoVariant;
}
