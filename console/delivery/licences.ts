import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

interface Package {
  name: string;
  version: string;
  license: string;
}

const FILE = /^(licen[cs]e|copying|ofl)(\.(md|txt))?$/i;

/** Writes LICENSES.txt: the licence of every dependency, and of every other package with a module in the build. */
export function licences(): Plugin {
  const used = new Set<string>();
  return {
    name: "tenuto-licences",
    apply: "build",
    configResolved({ root }) {
      const { dependencies } = read<{ dependencies: Record<string, string> }>(join(root, "package.json"));
      for (const name of Object.keys(dependencies)) used.add(join(root, "node_modules", name));
    },
    moduleParsed({ id }) {
      const folder = packageFolder(id);
      if (folder) used.add(folder);
    },
    generateBundle() {
      const texts = [...used]
        .map((folder) => ({ folder, about: read<Package>(join(folder, "package.json")) }))
        .sort((one, other) => (one.about.name < other.about.name ? -1 : 1))
        .map(({ folder, about }) => `${about.name} ${about.version} (${about.license})\n\n${licenceText(folder)}\n`);
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source: texts.join(`\n${"-".repeat(80)}\n\n`) });
    },
  };
}

function packageFolder(id: string): string | undefined {
  const path = (id.startsWith("\0") ? id.slice(1) : id).split("?")[0] ?? "";
  if (!path.includes("/node_modules/")) return undefined;
  for (let folder = dirname(path); folder.includes("/node_modules/"); folder = dirname(folder)) {
    const file = join(folder, "package.json");
    if (existsSync(file) && read<Partial<Package>>(file).version) return folder;
  }
  return undefined;
}

function licenceText(folder: string): string {
  const file = readdirSync(folder).find((name) => FILE.test(name));
  if (!file) throw new Error(`${folder} has no licence file.`);
  return readFileSync(join(folder, file), "utf8").replaceAll("\r\n", "\n").trim();
}

function read<T>(file: string): T {
  return JSON.parse(readFileSync(file, "utf8")) as T;
}
