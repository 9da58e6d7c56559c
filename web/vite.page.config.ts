import { defineConfig } from "vite";

// A page besides the main one is a bundle of its own, built with its name as the mode:
// `--mode batch` is the page about batch sizes, which an editor shows in a panel and
// `stepscope batch --html` writes into one file; `--mode ranks` is the page about a whole job, of
// `stepscope ranks --html` and `--view`; `--mode watch` is that about a watched run.
export default defineConfig(({ mode }) => ({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/stepscope/_web",
    emptyOutDir: false,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      input: `${mode}.html`,
      output: {
        entryFileNames: `${mode}.js`,
        chunkFileNames: `${mode}-[name].js`,
        assetFileNames: `${mode}[extname]`,
      },
    },
  },
}));
