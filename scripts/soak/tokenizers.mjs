// Part of scripts/soak/tokenizers: compares the ids of `foresail data prepare` with Hugging Face's own library, text by
// text. node tokenizers.mjs FORESAIL FIXTURES NAME TOKENIZER.JSON FOLDER: prints one line, exits 1 if a text differs that
// should not: one of the mixed text, or of a character that Unicode 14 (the data of PCRE2 10.42) knows.
import {execFileSync} from 'node:child_process';
import fs from 'node:fs';
import {createRequire} from 'node:module';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const [foresail, fixtures, name, file, folder] = process.argv.slice(2);
const {mixedText} = await import(pathToFileURL(path.resolve(fixtures, 'text.mjs')));
const {Tokenizer} = createRequire(`${folder}/`)('tokenizers');
const tokenizer = Tokenizer.fromFile(file);

/// A character between letters, digits, spaces and line ends: shows its class to every alternative of a pattern.
const around = (c) => {
  const s = String.fromCodePoint(c);
  return `a${s}b ${s}1${s} ${s}${s}\n${s}.`;
};
const block = (first) => Array.from({length: 64}, (_, i) => first + i);

/// Numbers of the texts whose ids differ. Id 0 ends documents here, and texts do not hold its character ('!').
async function differences(texts) {
  const input = `${folder}/${name}.jsonl`, out = `${folder}/${name}`;
  fs.writeFileSync(input, texts.map((text) => JSON.stringify({text}) + '\n').join(''));
  execFileSync(foresail, ['data', 'prepare', input, '--tokenizer', file, '--end-of-document', '0', '--out', out],
               {stdio: 'ignore'});
  const wide = JSON.parse(fs.readFileSync(`${out}.dataset.json`, 'utf8')).token_type !== 'u16';
  const bin = fs.readFileSync(`${out}.bin`);
  const ours = wide ? new Int32Array(bin.buffer, bin.byteOffset, bin.length / 4)
                    : new Uint16Array(bin.buffer, bin.byteOffset, bin.length / 2);
  const index = fs.readFileSync(`${out}.idx`);
  const count = Number(index.readBigUInt64LE(18));
  if (count !== texts.length) throw new Error(`${count} documents for ${texts.length} texts`);
  const different = [];
  let at = 0, total = 0;
  for (let d = 0; d < count; ++d) {
    const length = index.readInt32LE(34 + 4 * d);
    const theirs = (await tokenizer.encode(texts[d], null, {addSpecialTokens: false})).getIds();
    if (String(ours.subarray(at, at + length - 1)) !== String(theirs)) different.push(d);
    at += length;
    total += theirs.length;
  }
  return {different, total};
}

const mixed = mixedText(fixtures);
const firsts = Array.from({length: 0x110000 / 64}, (_, i) => 64 * i).filter((c) => c < 0xd800 || c >= 0xe000);
const texts = mixed.concat(firsts.map((first) => block(first).map(around).join('')));
const {different, total} = await differences(texts);
const wrong = different.filter((d) => d < mixed.length).length;
const suspects = different.filter((d) => d >= mixed.length).flatMap((d) => block(firsts[d - mixed.length]));
const characters = suspects.length ? (await differences(suspects.map(around))).different.map((d) => suspects[d]) : [];
const known = execFileSync('python3', ['-c', `import sys, unicodedata as u
assert u.unidata_version == "14.0.0", "needs Python 3.11"
print(*[f"{int(c):x}" for c in sys.stdin.read().split() if u.category(chr(int(c))) != "Cn"])`],
                           {input: characters.join(' '), encoding: 'utf8'}).trim();
console.log(`${name}: ${mixed.length} mixed texts, ${wrong} differ; ${firsts.length * 64} characters, ` +
            `${characters.length} differ, of those known to Unicode 14: ${known || 'none'}; ` +
            `${Buffer.byteLength(texts.join(''))} bytes, ${total} ids`);
process.exit(wrong > 0 || known ? 1 : 0);
