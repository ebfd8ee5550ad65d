// Unpack the Chromium of the npm package @sparticuz/chromium: node scripts/browser.mjs SOURCE TARGET
import { execFileSync } from "node:child_process";
import { chmodSync, createReadStream, createWriteStream, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [source, target] = process.argv.slice(2).map((path) => resolve(path));
rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
for (const packed of readdirSync(source)) {
  const file = join(target, basename(packed, ".br"));
  await pipeline(createReadStream(join(source, packed)), createBrotliDecompress(), createWriteStream(file));
  if (file.endsWith(".tar")) {
    execFileSync("tar", ["-xf", file, "-C", target]);
    rmSync(file);
  }
}
chmodSync(join(target, "chromium"), 0o755);
// The package's own file names folders of the service that it is made for.
writeFileSync(
  join(target, "fonts.conf"),
  `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig><dir>${target}/fonts</dir>` +
    `<dir>/usr/share/fonts</dir><cachedir>${target}/fonts-cache</cachedir></fontconfig>\n`,
);
