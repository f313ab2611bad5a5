import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

const NAME = "manifest.sha256.json";
const ASSETS = "assets";

/** Replaces the files of the previous build, and writes the SHA-256 of each new one to manifest.sha256.json. */
export function manifest(): Plugin {
  let folder = "";
  return {
    name: "tenuto-manifest",
    apply: "build",
    configResolved(config) {
      folder = join(config.root, config.build.outDir);
    },
    buildStart() {
      rmSync(join(folder, ASSETS), { recursive: true, force: true });
    },
    closeBundle() {
      if (!existsSync(join(folder, ASSETS))) return; // the build failed
      const names = [
        "LICENSES.txt",
        "index.html",
        ...readdirSync(join(folder, ASSETS)).map((name) => `${ASSETS}/${name}`),
      ];
      const sums = names.sort().map((name) => [name, sha256(join(folder, name))]);
      writeFileSync(join(folder, NAME), `${JSON.stringify(Object.fromEntries(sums), null, 2)}\n`);
    },
  };
}

function sha256(file: string): string {
  return createHash("sha256").update(readFileSync(file)).digest("hex");
}
