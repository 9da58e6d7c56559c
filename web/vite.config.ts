import { defineConfig } from "vitest/config";

// The bundle lies in the Python package, under names that never change: the package's own version
// tells one from another. The single file inlines both, so there is one script and one style.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/stepscope/_web",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "index.js",
        chunkFileNames: "[name].js",
        assetFileNames: "index[extname]",
      },
    },
  },
  // `npm run dev` beside `stepscope view --port 8765`, once that one's URL was opened for its cookie.
  server: { host: "127.0.0.1", proxy: { "/api": "http://127.0.0.1:8765" } },
  test: { environment: "node", include: ["test/**/*.test.ts"] },
});
