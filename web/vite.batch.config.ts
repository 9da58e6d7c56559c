import { defineConfig } from "vite";

// The page about batch sizes is a bundle of its own: an editor shows it in a panel, and
// `stepscope batch --html` writes it into one file.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/stepscope/_web",
    emptyOutDir: false,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      input: "batch.html",
      output: {
        entryFileNames: "batch.js",
        chunkFileNames: "batch-[name].js",
        assetFileNames: "batch[extname]",
      },
    },
  },
});
