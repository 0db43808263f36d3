/*
 * Signals that a kernel causes. The handler stores the fault and ends the block as if the thread
 * had called simt_end_block(). The report is written later, outside the signal handler.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "runtime.h"

static const int WATCHED[] = {SIGSEGV, SIGBUS, SIGFPE};
enum { WATCHED_COUNT = sizeof WATCHED / sizeof *WATCHED };

static struct sigaction previous[WATCHED_COUNT];
static pthread_once_t key_created = PTHREAD_ONCE_INIT;

/* A fiber's stack may have overflowed, so the handler has its own stack. */
static const size_t SIGNAL_STACK_BYTES = (size_t)64 << 10;

#if defined(__x86_64__)

static uintptr_t *program_counter(ucontext_t *context) {
  return (uintptr_t *)&context->uc_mcontext.gregs[REG_RIP];
}

static uintptr_t *stack_pointer(ucontext_t *context) {
  return (uintptr_t *)&context->uc_mcontext.gregs[REG_RSP];
}

static bool is_write(const ucontext_t *context) {
  return (context->uc_mcontext.gregs[REG_ERR] & 2) != 0;
}

#else

static uintptr_t *program_counter(ucontext_t *context) {
  return (uintptr_t *)&context->uc_mcontext.pc;
}

static uintptr_t *stack_pointer(ucontext_t *context) {
  return (uintptr_t *)&context->uc_mcontext.sp;
}

/** Linux appends records to the context; one of them holds the exception syndrome. */
static bool is_write(const ucontext_t *context) {
  const struct _aarch64_ctx *record = (const void *)context->uc_mcontext.__reserved;
  while (record->magic != 0) {
    if (record->magic == ESR_MAGIC) return ((const struct esr_context *)record)->esr >> 6 & 1;
    record = (const void *)((const char *)record + record->size);
  }
  /* Emulators omit it. This bit is set in nearly all loads and clear in nearly all stores. */
  if (context->uc_mcontext.pc == context->uc_mcontext.fault_address) return false; /* a bad jump */
  const uint32_t instruction = *(const uint32_t *)context->uc_mcontext.pc;
  return (instruction >> 22 & 1) == 0;
}

#endif

static bool caused_by_kernel(ucontext_t *context) {
  const Worker *worker = simt_worker;
  return worker != NULL && worker->in_kernel && simt_in_fibers(worker, *stack_pointer(context));
}

uintptr_t simt_interrupted_pc(void *context) {
  return *program_counter(context);
}

bool simt_leave_block(void *context, Outcome outcome) {
  if (!caused_by_kernel(context)) return false;
  simt_worker->outcome = outcome;
  *stack_pointer(context) = (uintptr_t)simt_worker->own_stack;
  *program_counter(context) = (uintptr_t)simt_switch_resume;
  return true;
}

/** Calls the handler that was installed before, or restores the default action. */
static void pass_on(int signal, siginfo_t *info, void *context) {
  int i = 0;
  while (WATCHED[i] != signal) i++;
  if (previous[i].sa_flags & SA_SIGINFO) {
    previous[i].sa_sigaction(signal, info, context);
  } else if (previous[i].sa_handler == SIG_DFL || previous[i].sa_handler == SIG_IGN) {
    sigaction(signal, &previous[i], NULL); /* on return the instruction faults again */
  } else {
    previous[i].sa_handler(signal);
  }
}

static void handle(int signal, siginfo_t *info, void *context) {
  if (!caused_by_kernel(context)) {
    pass_on(signal, info, context);
    return;
  }
  Worker *worker = simt_worker;
  if (signal == SIGSEGV && simt_observer != NULL &&
      simt_observer->fault((uintptr_t)info->si_addr)) {
    return; /* the access is repeated */
  }
  const uintptr_t call_site = (uintptr_t)worker->access_call_site;
  worker->fault = (Fault){
      .signal = signal,
      .code = info->si_code,
      .address = (uintptr_t)info->si_addr,
      .pc = call_site != 0 ? call_site - 1 : *program_counter(context),
      .is_write = is_write(context) || (call_site != 0 && worker->access_is_write),
  };
  simt_leave_block(context, FAULTED);
}

static pthread_key_t signal_stack_key;

static void free_signal_stack(void *memory) {
  const stack_t none = {.ss_flags = SS_DISABLE};
  sigaltstack(&none, NULL);
  munmap(memory, SIGNAL_STACK_BYTES);
}

static void create_key(void) {
  pthread_key_create(&signal_stack_key, free_signal_stack);
}

void simt_faults_use_own_stack(void) {
  stack_t stack;
  pthread_once(&key_created, create_key);
  if (sigaltstack(NULL, &stack) != 0 || !(stack.ss_flags & SS_DISABLE)) return;
  void *memory =
      mmap(NULL, SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  stack = (stack_t){.ss_sp = memory, .ss_size = SIGNAL_STACK_BYTES};
  sigaltstack(&stack, NULL);
  pthread_setspecific(signal_stack_key, memory);
}

void simt_faults_watch(void) {
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < WATCHED_COUNT; i++) {
    struct sigaction current;
    sigaction(WATCHED[i], NULL, &current);
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == handle) continue;
    previous[i] = current;
    sigaction(WATCHED[i], &action, NULL);
  }
}
