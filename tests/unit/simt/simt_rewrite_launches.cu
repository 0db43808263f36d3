/** @file Tests of the program that translates kernel launches into C++. */
#include <string>

#include "../tests/unit/simt/simt_testing.h"

static char tool[4096], source_path[] = "/tmp/rewrite_launches_XXXXXX";
static char output[8192], message[1024];

/** Runs the tool with these arguments; returns its exit code and what it prints. */
template <size_t SIZE>
static int run_tool(const std::string &arguments, char (&text)[SIZE]) {
  FILE *pipe = popen(("'" + std::string(tool) + "' " + arguments).c_str(), "r");
  assert_non_null(pipe);
  text[fread(text, 1, SIZE - 1, pipe)] = '\0';
  return WEXITSTATUS(pclose(pipe));
}

/** Rewrites `source`; returns the exit code and leaves what was printed in output and message. */
static int rewrite(const char *source) {
  FILE *file = fopen(source_path, "w");
  assert_non_null(file);
  fputs(source, file);
  fclose(file);
  const std::string path = source_path;
  run_tool(path + " 2>&1 >/dev/null", message);
  return run_tool(path + " 2>/dev/null", output);
}

static void expect(const char *source, const char *result) {
  char expected[8192];
  assert_int_equal(rewrite(source), 0);
  snprintf(expected, sizeof expected, "#line 1 \"%s\"\n%s", source_path, result);
  assert_string_equal(output, expected);
  assert_string_equal(message, "");
}

static void expect_unchanged(const char *source) {
  expect(source, source);
}

TEST(launches_become_expressions) {
  expect("k<<<1, 2>>>(a);", "k *simt::launch(1, 2)(a);");
  expect("k<64, T><<<grid, dim3(1, 2), 3 * n, s>>>(a, b);",
         "k<64, T> *simt::launch(grid, dim3(1, 2), 3 * n, s)(a, b);");
  expect("k <<< 1,2 >>> (a);", "k  *simt::launch( 1,2 ) (a);");
  expect("if (x) a<<<1,2>>>(); else b<<<3,4>>>();",
         "if (x) a *simt::launch(1,2)(); else b *simt::launch(3,4)();");
  expect("a<<<1,2>>>(x), b<<<3,4>>>(y);", "a *simt::launch(1,2)(x), b *simt::launch(3,4)(y);");
}

TEST(launches_may_span_lines) {
  expect("k\n  <<<1, // >>>(\n 2, /* >>>( */ 3\n>>>\n(\na);\n",
         "k\n   *simt::launch(1, // >>>(\n 2, /* >>>( */ 3\n)\n(\na);\n");
}

TEST(configurations_may_hold_templates_and_shifts) {
  expect("k<<<f<g<h<1>>>(n), (a >> 1), b << 2>>>(x);",
         "k *simt::launch(f<g<h<1>>>(n), (a >> 1), b << 2)(x);");
  expect("k<<<1, f<2>>>>(x);", "k *simt::launch(1, f<2>)(x);");
  expect("k<<<1, max(a<b<c<4>>>(1), 2)>>>(x);", "k *simt::launch(1, max(a<b<c<4>>>(1), 2))(x);");
  expect("k<<<1, 2>>>(f<g<h<1>>>(n));", "k *simt::launch(1, 2)(f<g<h<1>>>(n));");
  expect("k<t<u<v<int>>>><<<1, ')' + \">>>(\"[0]>>>(x);",
         "k<t<u<v<int>>>> *simt::launch(1, ')' + \">>>(\"[0])(x);");
}

TEST(kernels_keep_their_bounds) {
  expect("__global__ void k(int *a) { x; }", "__global__ void k(int *a) { SIMT_KERNEL() x; }");
  expect("template <int N>\n__global__ void __launch_bounds__(f(N),\n  2) // {\nk(T t = {}) {\n{}}",
         "template <int N>\n__global__ void __launch_bounds__(f(N),\n  2) // {\nk(T t = {}) { "
         "SIMT_KERNEL(f(N), 2)\n{}}");
  expect("__global__ __launch_bounds__(64) void k() {} void f() {}",
         "__global__ __launch_bounds__(64) void k() { SIMT_KERNEL(64)} void f() {}");
  expect("template <int N>\n__launch_bounds__(f(int{N}), 2) __global__ void k() {}",
         "template <int N>\n__launch_bounds__(f(int{N}), 2) __global__ void k() { "
         "SIMT_KERNEL(f(int{N}), 2)}");
  expect("__launch_bounds__(64) __global__ void k(); __global__ void l() {}",
         "__launch_bounds__(64) __global__ void k(); __global__ void l() { SIMT_KERNEL()}");
  expect("__launch_bounds__(64) __global__ void k() {} __global__ void l() {}",
         "__launch_bounds__(64) __global__ void k() { SIMT_KERNEL(64)} "
         "__global__ void l() { SIMT_KERNEL()}");
  expect("#define B __launch_bounds__(64)\n__global__ void k() {}",
         "#define B __launch_bounds__(64)\n__global__ void k() { SIMT_KERNEL()}");
  expect_unchanged("__global__ void k(int *a); void f() {}");
  expect_unchanged("// __global__ void k(int *a) {}");
  expect_unchanged("#define KERNEL(name) \\\n  __global__ void name\nstruct S {};");
}

TEST(dynamic_shared_memory_may_have_any_name) {
  expect("extern __shared__ float tile[];",
         "extern __shared__ float tile[] __asm__(\"smem\");\n__asm__(\".weakref tile, smem\");");
  expect("__shared__ extern __align__(16) T t[][N + 1];",
         "__shared__ extern __align__(16) T t[][N + 1] __asm__(\"smem\");\n"
         "__asm__(\".weakref t, smem\");");
  expect("extern __shared__ int a[], b[];",
         "extern __shared__ int a[] __asm__(\"smem\"), b[] __asm__(\"smem\");\n"
         "__asm__(\".weakref a, smem\");\n__asm__(\".weakref b, smem\");");
  expect("extern __shared__ int t[]; extern __shared__ int t[];",
         "extern __shared__ int t[] __asm__(\"smem\"); extern __shared__ int t[] "
         "__asm__(\"smem\");\n__asm__(\".weakref t, smem\");");
  expect("extern __shared__ char smem[];", "extern __shared__ char smem[] __asm__(\"smem\");");
  expect_unchanged("extern int a[]; __shared__ float b[3]; extern \"C\" { __shared__ int c[2]; }");
}

TEST(variables_of_the_device_are_told_from_functions) {
  expect("__device__ int n; static __device__ __align__(16) float x[4] = {1}, y;",
         "SIMT_DEVICE_VARIABLE int n; static SIMT_DEVICE_VARIABLE __align__(16) float x[4] = {1}, "
         "y;");
  expect("__device__ __managed__ pair<int, float> p{3};",
         "__device__ SIMT_DEVICE_VARIABLE pair<int, float> p{3};");
  expect_unchanged("__device__ pair<int, float> f(int a, int b = 3); auto g = [] __device__ {};");
  expect_unchanged("__device__ __attribute__((pure)) float *f(int); h = [=] __device__(int i) {};");
  expect_unchanged("__device__ __constant__ int a; __constant__ __device__ int b[3];");
  expect_unchanged("__device__ constexpr int N = 3; __device__ __shared__ int s;");
}

TEST(inline_ptx_becomes_an_error_of_the_compiler) {
  const std::string error = "static_assert(false, SIMT_NO_INLINE_PTX) SIMT_OMIT";
  expect("asm volatile\n(\"mov.u32 %0, %1;\" : \"=r\"(x) : \"r\"(y));",
         (error + " \n(\"mov.u32 %0, %1;\" : \"=r\"(x) : \"r\"(y));").c_str());
  expect("__asm__(\"nop;\"); f(volatile_x);", (error + "(\"nop;\"); f(volatile_x);").c_str());
  expect_unchanged("asm volatile(\"\" : \"+r\"(x) : : \"memory\");");
}

TEST(noinline_is_an_attribute) {
  expect("__device__ __noinline__ void f();", "__device__ __attribute__((noinline)) void f();");
  expect_unchanged(
      "__attribute__((__noinline__)) void f(); __attribute__((cold, __noinline__)) g;");
}

TEST(what_editors_on_windows_add_is_dropped) {
  expect("\xef\xbb\xbfint a;\r\nint b;\r\n", "int a;\nint b;\n");
  expect("// continued \\\r\n k<<<1,2>>>(a);\r\n", "// continued \\\n k<<<1,2>>>(a);\n");
  expect_unchanged("int a;\r int b;");
}

TEST(a_launch_that_deduces_template_arguments_is_an_error) {
  char expected[512];
  snprintf(expected, sizeof expected,
           "%s:2: error: k is a template, and the CPU backend does not deduce the arguments of a "
           "template at a launch: write them, as in k<float><<<grid, block>>>(...)\n",
           source_path);
  for (const char *source :
       {"template <typename T> __global__ void __launch_bounds__(64) k(T *a) {}\nvoid f() { "
        "k<<<1, 2>>>(a); }",
        "template <int N = 3> __global__ void k(T *a);\nvoid f() { n::k<<<1, 2>>>(a); }"}) {
    assert_int_equal(rewrite(source), 1);
    assert_string_equal(message, expected);
  }
  for (const char *source :
       {"template <int N> __global__ void k(int *); void f() { k<3><<<1, 2>>>(a); }",
        "template <int N> __global__ void k(int *); void f() { config->k<<<1, 2>>>(a); }",
        "template <int N> void k(int *); __global__ void l(); void f() { l<<<1, 2>>>(); }",
        "template <class T> __global__ void k(T); __global__ void k(); void f() { k<<<1, 2>>>(); "
        "}"})
    assert_int_equal(rewrite(source), 0);
}

TEST(comments_strings_and_other_code_are_left_alone) {
  expect("// lone <<< here\nk<<<1,2>>>(a);", "// lone <<< here\nk *simt::launch(1,2)(a);");
  expect_unchanged("/* k<<<1,2>>>(a);\n <<< */ x;");
  expect_unchanged("// continued \\\n k<<<1,2>>>(a);\n");
  expect_unchanged("/* not closed <<<");
  expect_unchanged("s = \"k<<<1,2>>>(a) \\\" <<<\";");
  expect_unchanged("c = '\"'; d = '\\''; e = L'<'; f = u8'<'; g = '<<<';");
  expect("n = 1'000'000; k<<<0xff'ff, 1'0>>>(a);",
         "n = 1'000'000; k *simt::launch(0xff'ff, 1'0)(a);");
  expect("#error don't\nk<<<1,2>>>(a);", "#error don't\nk *simt::launch(1,2)(a);");
  expect("FOUR\"x\" k<<<1,2>>>(a); \"y\"", "FOUR\"x\" k *simt::launch(1,2)(a); \"y\"");
  expect_unchanged("std::vector<a<b<int>>>x; y = a << b >> c; t<u<v>>>(1);");
  expect_unchanged("cout.operator<<<int>(3); template <> s &operator<<<int>(s &, int);");
  expect_unchanged("");
  expect_unchanged("no newline at the end");
}

TEST(a_launch_without_an_end_is_an_error) {
  char expected[256];
  snprintf(expected, sizeof expected, "%s:3: error: this <<< has no matching >>>(arguments)\n",
           source_path);
  for (const char *source : {"a;\n\nk<<<1, 2;\n k<<<3,4>>>(x);", "\n\nk<<<1, (2>>>(x));",
                             "\n\nk<<<1, 2>>>;", "\n\nk<<<1, 2 /* >>>(x);", "\n\n} k<<<1 }"}) {
    assert_int_equal(rewrite(source), 1);
    assert_string_equal(message, expected);
  }
}

TEST(wrong_use_is_refused) {
  assert_int_equal(run_tool("2>&1", message), 2);
  assert_contains(message, "usage: ");
  assert_int_equal(run_tool("/no/such/file.cu 2>&1", message), 1);
  assert_string_equal(message, "/no/such/file.cu: No such file or directory\n");
  assert_int_equal(rewrite("a;"), 0);
  assert_int_equal(run_tool(source_path + std::string(" 2>&1 >/dev/full"), message), 1);
  assert_string_equal(message, "standard output: No space left on device\n");
}

/** The tool is in the directory above this program's. */
static int prepare(void **) {
  const ssize_t length = readlink("/proc/self/exe", tool, sizeof tool - 32);
  assert_true(length > 0);
  tool[length] = '\0';
  strcpy(strrchr(tool, '/'), "/../../rewrite_launches");
  const int file = mkstemp(source_path);
  assert_true(file >= 0);
  close(file);
  return 0;
}

static int clean_up(void **) {
  return unlink(source_path);
}

RUN_TESTS(prepare, clean_up)
