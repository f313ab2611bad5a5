import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { licences } from "./delivery/licences.ts";
import { manifest } from "./delivery/manifest.ts";

// Paths in the built files are relative: the service is mounted anywhere, and writes its prefix into index.html.
export default defineConfig({
  base: "./",
  plugins: [react(), licences(), manifest()],
  build: {
    outDir: "../src/tenuto/service/console",
    emptyOutDir: false, // the manifest plugin removes what an earlier build left
    assetsInlineLimit: 0, // the policy of the page allows no data: URL
    modulePreload: { polyfill: false },
    target: ["chrome125", "firefox135", "safari18.4"],
    reportCompressedSize: false,
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8080" } },
  test: { include: ["src/**/*.test.ts", "src/**/*.test.tsx"], environment: "node" },
});
