// A compiled package behind a TorchScript class. torch's own Python binding holds the interpreter lock for a whole
// run (pytorch issue 197516), so that on a CPU nothing else in the process would move; a class's method runs without it.
// One runner belongs to one thread: it was opened single-threaded.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>
#include <torch/library.h>

namespace {

class Runner : public torch::CustomClassHolder {
 public:
  Runner(const std::string& path, int64_t device_index)
      : loader_(path, "model", /*run_single_threaded=*/true, /*num_runners=*/1,
                static_cast<c10::DeviceIndex>(device_index)) {}

  std::vector<std::string> constant_names() { return loader_.get_constant_fqns(); }

  // The package keeps pointers, not copies: the caller keeps the tensors alive for as long as the runner.
  void use_constants(const c10::Dict<std::string, at::Tensor>& constants) {
    std::unordered_map<std::string, at::Tensor> by_name;
    for (const auto& entry : constants) {
      by_name.emplace(entry.key(), entry.value());
    }
    loader_.load_constants(by_name, /*use_inactive=*/false, /*check_full_update=*/true, /*user_managed=*/true);
  }

  // On CUDA: launched on the calling thread's current stream, not waited for.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) { return loader_.boxed_run(std::move(inputs)); }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
};

}  // namespace

TORCH_LIBRARY(boundgen_runtime, m) {
  m.class_<Runner>("Runner")
      .def(torch::init<std::string, int64_t>())
      .def("constant_names", &Runner::constant_names)
      .def("use_constants", &Runner::use_constants)
      .def("run", &Runner::run);
}
