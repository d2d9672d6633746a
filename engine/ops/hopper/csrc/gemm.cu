// The entry points of the fused GEMMs. ELEMENT (E4m3 or Bf16) is set by the compiler, one object a type.
#include "epilogue_gate_up.cuh"
#include "epilogue_qkv.cuh"
#include "epilogue_residual.cuh"

using namespace boundgen;
using Elem = ELEMENT;
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)
#define ENTRY(name) extern "C" __attribute__((visibility("default"))) int NAME1(name, ELEMENT)

ENTRY(residual)(const GemmCall* c, const Residual<256>::Params* p) {
  if (c->tile == 256) return launch_gemm<Elem, 256, Residual<256>>(*c, *p);
  if (c->tile == 192) return launch_gemm<Elem, 192, Residual<192>>(*c, reinterpret_cast<const Residual<192>::Params&>(*p));
  if (c->tile == 128) return launch_gemm<Elem, 128, Residual<128>>(*c, reinterpret_cast<const Residual<128>::Params&>(*p));
  return kErrorNoVariant;
}

template <class Out> static int gate_up(const GemmCall& c, const void* p) {
  if (c.tile == 256) return launch_gemm<Elem, 256, GateUp<256, Out>>(c, *static_cast<const typename GateUp<256, Out>::Params*>(p));
  if (c.tile == 128) return launch_gemm<Elem, 128, GateUp<128, Out>>(c, *static_cast<const typename GateUp<128, Out>::Params*>(p));
  return kErrorNoVariant;
}
ENTRY(gate_up)(const GemmCall* c, const void* p) {
  return c->output == E4m3::kCode ? gate_up<E4m3>(*c, p) : c->output == Bf16::kCode ? gate_up<Bf16>(*c, p) : kErrorNoVariant;
}

template <int BN, int D> static int qkv(const GemmCall& c, const void* p) {
  return launch_gemm<Elem, BN, Qkv<BN, D>>(c, *static_cast<const typename Qkv<BN, D>::Params*>(p));
}
ENTRY(qkv)(const GemmCall* c, const void* p, int head_dim) {
  if (head_dim == 128 && c->tile == 256) return qkv<256, 128>(*c, p);
  if (head_dim == 128 && c->tile == 128) return qkv<128, 128>(*c, p);
  if (head_dim == 64 && c->tile == 256) return qkv<256, 64>(*c, p);
  if (head_dim == 64 && c->tile == 192) return qkv<192, 64>(*c, p);
  if (head_dim == 64 && c->tile == 128) return qkv<128, 64>(*c, p);
  return kErrorNoVariant;
}
