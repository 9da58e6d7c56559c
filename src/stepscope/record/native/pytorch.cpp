// PyTorch's adapter: at::RecordFunction reports each operator, in every thread.
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>

#include "collector.h"
#include "device.h"
#include "memory.h"
#include "monitor.h"
#include "pytorch.h"

namespace stepscope {
namespace {

// The observer context from an operator's begin to its end; threads reuse these objects.
struct Context : at::ObserverContext {
  Entry entry;
  static void* operator new(size_t size);
  static void operator delete(void* memory);
};

__thread void* spare = nullptr;

struct Cleaner {
  bool is_needed = false;
  ~Cleaner() {
    while (void* memory = spare) {
      spare = *static_cast<void**>(memory);
      ::operator delete(memory);
    }
  }
};
thread_local Cleaner cleaner;

void* Context::operator new(size_t size) {
  if (void* memory = spare) {
    spare = *static_cast<void**>(memory);
    return memory;
  }
  cleaner.is_needed = true;  // so that it exists when the thread ends
  return ::operator new(size);
}

// An operator that ended in another thread may still be on the stack of the thread that began it:
// its memory is not freed then, a rare and small leak.
void Context::operator delete(void* memory) {
  auto* context = static_cast<Context*>(memory);
  if (context->entry.is_linked.load(std::memory_order_acquire)) return;
  *static_cast<void**>(memory) = spare;
  spare = memory;
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (!active.load(std::memory_order_relaxed)) return nullptr;
  auto context = std::unique_ptr<Context>(new Context);
  Operator op{function.name()};
  auto scope = function.scope();
  op.sequence = function.seqNr();
  if (scope == at::RecordScope::BACKWARD_FUNCTION) {
    op.is_backward = true;
    op.forward_id = function.forwardThreadId();
  } else if (scope == at::RecordScope::USER_SCOPE) {
    op.kind = Kind::annotation;
  }
  begin(&context->entry, op, &at::RecordFunction::currentThreadId);
  return context;
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context) end(&static_cast<Context*>(context)->entry);
}

// -- inputs and outputs, as JSON: [[dtype, [size, …], device, bytes], …]; null where none is a tensor

void add_tensor(std::string& text, const at::Tensor& tensor) {
  if (text.size() > 1) text += ',';
  auto* data = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || tensor.is_nested() || data->has_symbolic_sizes_strides()) {
    text += "null";
    return;
  }
  text += std::string("[\"") + c10::toString(tensor.scalar_type()) + "\",[";
  for (int64_t axis = 0; axis < tensor.dim(); axis++)
    text += (axis ? "," : "") + std::to_string(tensor.size(axis));
  text += "],\"" + tensor.device().str() + "\"," +
          std::to_string(tensor.numel() * int64_t(tensor.element_size())) + "]";
}

template <class Values>
std::string tensors_text(const Values& values) {
  std::string text = "[";
  for (const c10::IValue& value : values) {
    if (value.isTensor()) add_tensor(text, value.toTensor());
    else if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorList().vec()) add_tensor(text, tensor);
    else text += text.size() > 1 ? ",null" : "null";
  }
  return text + "]";
}

void emit_tensors(Phase phase, const at::RecordFunction& function, const std::string& text) {
  OwnTime own;
  emit({Domain::tensors, phase, function.name(), 0, 0, 0, kRoot, text.c_str()});
}

std::unique_ptr<at::ObserverContext> inputs_of(const at::RecordFunction& function) {
  if (is_watched(Domain::tensors)) emit_tensors(Phase::begin, function, tensors_text(function.inputs()));
  return nullptr;
}

void outputs_of(const at::RecordFunction& function, at::ObserverContext*) {
  if (is_watched(Domain::tensors)) emit_tensors(Phase::end, function, tensors_text(function.outputs()));
}

// Wraps the CPU allocator. Its allocations stay valid after it is removed.
struct Watching : c10::Allocator {
  c10::Allocator* before = nullptr;
  static c10::DeleterFnPtr release_before;

  static void release(void* memory) {
    released("cpu", memory);
    release_before(memory);
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = before->allocate(bytes);
    allocated("cpu", data.get(), bytes);
    if (data.get_deleter() == release_before && data.get_context() == data.get())
      (void)data.compare_exchange_deleter(release_before, &release);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return before->raw_deleter() ? &release : nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    before->copy_data(to, from, bytes);
  }
};
c10::DeleterFnPtr Watching::release_before = nullptr;
Watching& watching() {
  static auto* allocator = new Watching;
  return *allocator;
}

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle handle_of_tensors = at::INVALID_CALLBACK_HANDLE;

}  // namespace

void attach_pytorch() {
  if (handle != at::INVALID_CALLBACK_HANDLE) return;
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_begin, &on_end)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

void detach_pytorch() {
  if (handle == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(handle);
  handle = at::INVALID_CALLBACK_HANDLE;
}

void attach_tensors() {
  if (handle_of_tensors != at::INVALID_CALLBACK_HANDLE) return;
  handle_of_tensors = at::addGlobalCallback(
      at::RecordFunctionCallback(&inputs_of, &outputs_of)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void detach_tensors() {
  if (handle_of_tensors == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(handle_of_tensors);
  handle_of_tensors = at::INVALID_CALLBACK_HANDLE;
}

const char* watch_memory() {
  c10::Allocator* now = c10::GetAllocator(c10::DeviceType::CPU);
  if (now == &watching()) return "";
  if (!now->raw_deleter()) return "the CPU allocator does not provide a deleter";
  watching().before = now;
  Watching::release_before = now->raw_deleter();
  c10::SetAllocator(c10::DeviceType::CPU, &watching());
  return c10::GetAllocator(c10::DeviceType::CPU) == &watching()
             ? ""
             : "another tool has replaced the CPU allocator";
}

void unwatch_memory() {
  if (c10::GetAllocator(c10::DeviceType::CPU) == &watching())
    c10::SetAllocator(c10::DeviceType::CPU, watching().before);
}

}  // namespace stepscope
