import { defineConfig } from "vite";

// The page about a whole job is a bundle of its own: `stepscope ranks --html` writes it into one
// file, and `stepscope ranks --view` serves it beside the page of each rank's trace.
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
      input: "ranks.html",
      output: {
        entryFileNames: "ranks.js",
        chunkFileNames: "ranks-[name].js",
        assetFileNames: "ranks[extname]",
      },
    },
  },
});
