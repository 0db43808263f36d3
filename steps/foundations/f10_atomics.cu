/**
 * @file
 * f10: additions and transfers of n threads, which must not disturb each other.
 *
 * An atomic operation reads, changes and writes a number in one piece. A lock makes several
 * accesses one piece: whoever changes it from 0 to 1 may go on, all others try again. Two locks can
 * be taken in an order in which each of two threads waits for the other for ever. And what one
 * thread writes, others see in another order, unless fences say otherwise.
 *
 *     ./f10 --stage=deadlock        threads that take two locks in different orders
 */
#include <stdio.h>
#include <stdlib.h>

#include "foundation.h"

constexpr int THREADS = 128, ACCOUNTS = 64;
constexpr int ADDITIONS = 64;        // of each thread to a counter
constexpr int FAR = 32;              // words between counters that do not share a line of 128 bytes
constexpr int MOST_TRIES = 1 << 20;  // on a GPU a deadlock would never end: then threads give up

// [counters]
/** Every thread adds to one number: the L2 cache adds one after the other. */
__global__ void __launch_bounds__(THREADS) one_kernel(int n, int *counters) {
  if ((int)(blockIdx.x * THREADS + threadIdx.x) >= n) return;
  for (int i = 0; i < ADDITIONS; i++) atomicAdd(&counters[0], 1);
}

/** Each block has a number of its own, `stride` words from the next. Those in one line of the cache
 * are in one place of L2, too, so they wait for each other as one number does. */
__global__ void __launch_bounds__(THREADS) blocks_kernel(int n, int *counters, int stride) {
  if ((int)(blockIdx.x * THREADS + threadIdx.x) >= n) return;
  int *const counter = &counters[blockIdx.x % ACCOUNTS * stride];
  for (int i = 0; i < ADDITIONS; i++) atomicAdd(counter, 1);
}
// [counters]

/** Two numbers that belong together. */
struct Account {
  int lock, money, transfers, unused;
};

// [locks]
/** Tries once. The fence keeps what follows from being read before the lock is ours. */
__device__ bool try_lock(Account *account) {
  if (atomicCAS(&account->lock, 0, 1) != 0) return false;
  __threadfence();
  return true;
}
/** The fence makes what was written visible before the lock is free. */
__device__ void unlock(Account *account) {
  __threadfence();
  atomicExch(&account->lock, 0);
}
/** What only the owner of the lock reads and writes. */
__device__ void add(Account *account, int money) {
  account->money = __ldcg(&account->money) + money;  // from L2: L1 may hold what was there before
  account->transfers = __ldcg(&account->transfers) + 1;
}
// [locks]

// [one_lock]
/** One lock. A lane that has it does its work and frees it within the loop: if it left the loop
 * first, it might wait there for its warp, and its warp for the lock. */
__global__ void __launch_bounds__(THREADS) lock_kernel(int n, Account *accounts) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  for (bool done = i >= n; !done;) {
    if (try_lock(&accounts[i % ACCOUNTS])) {
      add(&accounts[i % ACCOUNTS], 1);
      unlock(&accounts[i % ACCOUNTS]);
      done = true;
    }
  }
}
// [one_lock]

// [transfer]
/** Money goes from account a to account b, with both locks held; `first` and `second` say in which
 * order they are taken. Returns false if it gives up because that takes too long. */
__device__ bool transfer(Account *first, Account *second, Account *a, Account *b, bool gives_up) {
  for (int tries = 0; tries < MOST_TRIES; tries += gives_up) {
    if (!try_lock(first)) continue;
    for (; tries < MOST_TRIES; tries += gives_up) {
      if (!try_lock(second)) continue;
      add(a, -1);
      add(b, 1);
      unlock(second);
      unlock(first);
      return true;
    }
    unlock(first);
  }
  return false;
}
// [transfer]

// [order]
/** The lower account is locked first, by all: nobody who waits holds a lock that is lower than the
 * one it waits for, so there is no circle of threads that wait for each other. */
template <bool LOWER_FIRST>
__global__ void __launch_bounds__(THREADS) transfer_kernel(int n, Account *accounts, int *gave_up) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  Account *const a = &accounts[i % ACCOUNTS], *const b = &accounts[(i + 1) % ACCOUNTS];
  const bool swap = LOWER_FIRST && b < a;
  if (!transfer(swap ? b : a, swap ? a : b, a, b, !LOWER_FIRST)) atomicAdd(gave_up, 1);
}
// [order]

static int n;
static int *counters, *gave_up;
static Account *accounts;

static int blocks(void) {
  return (n + THREADS - 1) / THREADS;
}
static void clear(void) {
  CHECK(cudaMemsetAsync(counters, 0, sizeof(int) * ACCOUNTS * FAR));
  CHECK(cudaMemsetAsync(accounts, 0, sizeof(Account) * ACCOUNTS));
  CHECK(cudaMemsetAsync(gave_up, 0, sizeof(int)));
}
static void run_one(void) {
  clear(), one_kernel<<<blocks(), THREADS>>>(n, counters);
}
static void run_packed(void) {
  clear(), blocks_kernel<<<blocks(), THREADS>>>(n, counters, 1);
}
static void run_apart(void) {
  clear(), blocks_kernel<<<blocks(), THREADS>>>(n, counters, FAR);
}
static void run_lock(void) {
  clear(), lock_kernel<<<blocks(), THREADS>>>(n, accounts);
}
static void run_two_locks(void) {
  clear(), transfer_kernel<true><<<blocks(), THREADS>>>(n, accounts, gave_up);
}
static void run_deadlock(void) {
  clear(), transfer_kernel<false><<<blocks(), THREADS>>>(n, accounts, gave_up);
}

static bool counters_are_right(char note[200]) {
  uint32_t all[ACCOUNTS * FAR], sum = 0;
  const uint32_t right = (uint32_t)n * ADDITIONS;  // modulo 2^32, as the counters are
  CHECK(cudaMemcpy(all, counters, sizeof all, cudaMemcpyDeviceToHost));
  for (uint32_t count : all) sum += count;
  if (sum != right) snprintf(note, 200, "%u additions are %u", right, sum);
  return sum == right;
}

/** `money` and `transfers` of all accounts together. */
static bool accounts_are_right(int money, int transfers, char note[200]) {
  Account all[ACCOUNTS];
  int gave_up_host;
  CHECK(cudaMemcpy(all, accounts, sizeof all, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&gave_up_host, gave_up, sizeof(int), cudaMemcpyDeviceToHost));
  for (const Account &account : all) money -= account.money, transfers -= account.transfers;
  if (gave_up_host > 0) {
    snprintf(note, 200, "%d threads gave up", gave_up_host);
  } else if (money != 0 || transfers != 0) {
    snprintf(note, 200, "%d of the money and %d transfers are missing", money, transfers);
  }
  return gave_up_host == 0 && money == 0 && transfers == 0;
}
static bool lock_is_right(char note[200]) {
  return accounts_are_right(n, n, note);
}
static bool transfers_are_right(char note[200]) {
  return accounts_are_right(0, 2 * n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f10", "Makes 64 N additions and N transfers.", 100000000, 2000, 20000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  CHECK(cudaMalloc(&counters, sizeof(int) * ACCOUNTS * FAR));
  CHECK(cudaMalloc(&accounts, sizeof(Account) * ACCOUNTS));
  CHECK(cudaMalloc(&gave_up, sizeof(int)));

  foundation_stage("one-counter", run_one, counters_are_right);
  foundation_stage("packed", run_packed, counters_are_right);
  foundation_stage("apart", run_apart, counters_are_right);
  foundation_stage("lock", run_lock, lock_is_right);
  foundation_stage("two-locks", run_two_locks, transfers_are_right);
  foundation_stage_if_asked("deadlock", run_deadlock, transfers_are_right);
  const int code = foundation_end();

  CHECK(cudaFree(counters)), CHECK(cudaFree(accounts)), CHECK(cudaFree(gave_up));
  return code;
}
