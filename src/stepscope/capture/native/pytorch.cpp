// PyTorch's side: at::RecordFunction tells of each operator, in every thread.
#include <ATen/record_function.h>

#include "collector.h"
#include "pytorch.h"

namespace stepscope {
namespace {

// What travels from an operator's begin to its end; a thread keeps those it used for the next.
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
  cleaner.is_needed = true;  // makes it be there when the thread ends
  return ::operator new(size);
}

// An operator that ended in another thread than it began in may still be on that one's stack: its
// memory is left alone then, a rare and small loss.
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

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

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

}  // namespace stepscope
